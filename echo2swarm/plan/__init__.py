"""What a run needs and costs: a plan before it, advice while it runs."""
