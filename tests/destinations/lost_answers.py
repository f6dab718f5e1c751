"""A catalog of Iceberg that does not answer commits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.destinations.orders import ORDERS

from levada.destinations.iceberg.destination import IcebergDestination


@contextmanager
def lost_answers(destination: IcebergDestination, *, happens: bool) -> Iterator[None]:
    """Let the catalog lose the answers to the commits of files to the table, which happen or not."""
    state = destination._known.find(ORDERS.id)
    assert state is not None
    assert state.table is not None
    table, jvm = state.table, destination._tables.jvm
    compiler = jvm._gateway.jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.hadoop_conf.getClassLoader())
    compiler.cook(Path(__file__).with_name("LostAnswers.java").read_text())
    make = compiler.getClassLoader().loadClass("levada.LostAnswers").getConstructors()[0]
    arguments = jvm._gateway.new_array(jvm._gateway.jvm.Object, 2)
    arguments[0], arguments[1] = table.java.operations(), happens
    answering = table.opened
    table.opened = jvm.open_table(table.java, make.newInstance(arguments))
    try:
        yield
    finally:
        table.opened = answering
