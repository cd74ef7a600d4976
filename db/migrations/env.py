"""Alembic's entry: run the steps on the connection, and in the transaction, that `db.engine` hands over."""

from alembic import context

from db.engine import VERSION_TABLE
from db.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,  # SQLite changes a column by rebuilding its table
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
