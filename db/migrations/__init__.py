"""How the tables came to be, step by step; `db.engine.upgrade` runs them."""
