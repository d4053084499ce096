"""What users found out about their own machines, in files that scenarios name.

`nestsim calibrate` writes constants, `nestsim profile-links` what links reach.
"""
