"""Groups: the backend's registration in torch, making groups, finding them, and how their ranks meet."""
