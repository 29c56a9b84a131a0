"""A small store of records in one process, for other processes of the job or of another job."""
