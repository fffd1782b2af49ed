"""The web page that the API serves. `dist/` has the built files, the sources are beside it."""
