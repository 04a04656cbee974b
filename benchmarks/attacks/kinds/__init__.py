"""The attacks, a module each; :mod:`benchmarks.attacks.registry` lists them."""
