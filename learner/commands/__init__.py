"""One module for each subcommand of `echo2-learner`."""
