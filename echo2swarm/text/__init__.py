"""Words for people: formatting, suggestions, errors and options of the command line."""
