"""Membership of a node in a run: heartbeats, lifecycle, advert and neighbours."""
