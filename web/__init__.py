"""The page that the API serves, as built files in `dist/`; what they are built from is beside them."""
