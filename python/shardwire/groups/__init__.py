"""Groups: the backend's registration in torch, the making and finding of groups, and the stores through which ranks
meet."""
