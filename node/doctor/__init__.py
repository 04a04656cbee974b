"""``echo2-node doctor``: would this machine work, and be of use?

Probes gather facts, each within its time; pure functions make findings of them.
"""
