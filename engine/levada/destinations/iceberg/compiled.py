"""Java classes of this package, in the folder ``jvm``. They are compiled at run time.

Spark ships Janino, a Java compiler, for the code that it generates. Janino knows no lambdas and infers no types.
"""

from __future__ import annotations

import threading
from importlib import resources
from typing import Any, Final
from weakref import WeakKeyDictionary

JavaObject = Any

_PACKAGE: Final = "levada"
_LOCAL_FILES: Final = f"{_PACKAGE}.LocalFiles"
_FILE_SYSTEM: Final = "fs.file.impl"
"""Hadoop's setting for the class of the local file system."""
_installing: Final = threading.Lock()
_openers: Final[WeakKeyDictionary[JavaObject, JavaObject]] = WeakKeyDictionary()
"""The compiled ``OpenTable.Opener`` of each JVM, by its gateway."""


def compiled(jvm: JavaObject, name: str, parent: JavaObject) -> JavaObject:
    """Compile a Java source in ``jvm``. Return a class loader with its classes, which sees those of ``parent``."""
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(parent)
    compiler.cook(resources.files(__package__).joinpath("jvm", f"{name}.java").read_text())
    return compiler.getClassLoader()


def table_opener(gateway: JavaObject, parent: JavaObject) -> JavaObject:
    """Return an ``OpenTable.Opener``. It is compiled once in a JVM. ``parent`` is a class loader with Iceberg."""
    with _installing:
        if gateway not in _openers:
            opener = compiled(gateway.jvm, "OpenTable", parent).loadClass(f"{_PACKAGE}.OpenTable$Opener")
            _openers[gateway] = opener.getConstructors()[0].newInstance(gateway.new_array(gateway.jvm.Object, 0))
        return _openers[gateway]


def install_local_files(jvm: JavaObject, hadoop_conf: JavaObject) -> None:
    """Let Hadoop use ``LocalFiles`` as its local file system, in the whole JVM.

    A class that the user has configured stays.
    """
    if hadoop_conf.get(_FILE_SYSTEM) is not None:
        return
    root, conf = jvm.org.apache.hadoop.fs.Path("file:///"), jvm.org.apache.hadoop.conf.Configuration(hadoop_conf)
    with _installing:
        found = root.getFileSystem(conf)
        if found.getClass().getName() == _LOCAL_FILES:
            return
        conf.setClassLoader(compiled(jvm, "LocalFiles", conf.getClassLoader()))
        conf.set(_FILE_SYSTEM, _LOCAL_FILES)
        # Removes it from Hadoop's cache. It still works for its users.
        found.close()
        root.getFileSystem(conf)
