"""What people edit: the context builder's config with its JSON Schema, and an example of the settings file."""
