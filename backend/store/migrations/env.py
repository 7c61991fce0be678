"""Alembic's entry: runs revisions on the connection that `schema_version` hands over."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
