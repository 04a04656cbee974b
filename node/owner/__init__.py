"""What the owner of the machine has decided: when the node works, and what it may use."""
