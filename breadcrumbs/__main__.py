"""`python -m breadcrumbs`: runs the `crumb` command without its script."""

from breadcrumbs.cli import main

main()
