"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# No test may depend on how fast this machine is.
settings.register_profile(
    "no_clock", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("no_clock")
