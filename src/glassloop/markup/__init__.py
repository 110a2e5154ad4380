"""Templates that escape every value, and small pieces of HTML for notebooks. It knows nothing about runs and pages."""
