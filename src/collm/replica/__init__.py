"""One process's step loop: the only place where serving and training meet."""
