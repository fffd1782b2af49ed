"""The context builder: collects what a model gets to see of a session, as configured in JSON."""
