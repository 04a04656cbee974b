"""The run's metrics, in the form of tools that people watch runs with."""
