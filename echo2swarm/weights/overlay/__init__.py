"""A version reaches everybody: dealt by its source, traded by peers, watched by the tracker."""
