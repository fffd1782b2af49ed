"""The documents. The wheel contains the Markdown files, and a running server serves them below `/docs/`."""
