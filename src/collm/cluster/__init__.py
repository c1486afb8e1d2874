"""Several replicas behind one address: who runs, who answers, who learns with whom."""
