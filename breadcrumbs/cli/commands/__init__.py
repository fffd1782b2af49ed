"""The commands: their options and their help. What they do is in the modules that they import when called."""
