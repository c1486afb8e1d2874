"""The address that users know: passes calls to replicas, and shows the cluster as one server."""
