"""The page to watch: figures once a second, facts when they change, the same for every watcher."""
