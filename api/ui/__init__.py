"""The dashboard: pages for people, rendered on the server from what REST reads. They work without JavaScript."""
