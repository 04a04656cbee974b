"""How soon the last of N peers holds a new version, against the physical limit."""
