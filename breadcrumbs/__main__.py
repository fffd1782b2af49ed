"""`python -m breadcrumbs`: the command, for where no script was installed."""

from breadcrumbs.cli import main

main()
