"""What to change in a job that runs, and what each change gains."""
