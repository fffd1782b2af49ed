"""Files to edit: the config of the context builder with its JSON Schema, and an example of the settings file."""
