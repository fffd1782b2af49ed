"""The breadcrumb, its store and its HTTP: everything else stands on this and it knows nothing of them."""
