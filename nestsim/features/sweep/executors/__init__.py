"""Where points are evaluated: processes of this machine, Dask workers."""
