"""Tables with masked columns, compared with the source in an Iceberg lake and repaired."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from pathlib import Path

import pytest
from tests.rigs.pipeline import HELD
from tests.rigs.verified_shop import Shop

from levada.mask_keys import KeyFile, MaskKeyFiles
from levada.schema.masks import Mask, TableMasks
from levada.values import MaskMethod, QualifiedTable
from levada.verify.differences import Kind

KEY = b"a key of at least sixteen bytes"


def hashed(text: str) -> str:
    """Return the mask of a text by HMAC."""
    return hmac.digest(KEY, text.encode(), hashlib.sha256).hex()


@pytest.fixture
def masked(shop: Shop, tmp_path: Path) -> Shop:
    """A pipeline over a table whose key and other columns are masked."""
    (tmp_path / "key").write_bytes(KEY)
    file = KeyFile.open(tmp_path / "key")
    hashes, last = Mask(MaskMethod.HMAC, 0, file.key_id), Mask(MaskMethod.LAST, 2)
    masks = TableMasks.of({"email": hashes, "born": hashes, "card": last, "gone": Mask(MaskMethod.NULL)})
    shop.config = {
        "mask_keys": MaskKeyFiles((file,)),
        "tables": {QualifiedTable("public", "t"): replace(HELD, masks=masks)},
    }
    shop.db.execute(
        "CREATE TABLE t (email text PRIMARY KEY, born date, card text, gone bigint NOT NULL, open float8)",
        "INSERT INTO t SELECT 'e' || g, '2000-01-01'::date + g, 'card' || g, g, g / 3.0"
        " FROM generate_series(1, 3000) g",
    )
    shop.start()
    shop.wait_caught_up()
    return shop


def test_masks_are_compared(masked: Shop) -> None:
    """Equal after a copy and changes. A difference is found, and shown with masked keys and values alone."""
    masked.db.execute(
        "UPDATE t SET born = NULL, card = '' WHERE email = 'e7'",
        "DELETE FROM t WHERE email > 'e2990'",
        "UPDATE t SET email = 'moved' WHERE email = 'e8'",
    )
    report = masked.verify()
    assert report.equal, report
    masked.sql(f"UPDATE {{t}} SET card = 'theirs', gone = 5 WHERE email = '{hashed('e55')}'")
    masked.sql(f"DELETE FROM {{t}} WHERE email = '{hashed('e66')}'")
    report = masked.verify(show_values=True)
    assert (report.counts[Kind.CHANGED], report.counts[Kind.MISSING]) == (1, 1)
    changed, missing = sorted(report.to_json()["examples"], key=lambda e: str(e["kind"]))
    assert changed["key"] == {"email": hashed("e55")}
    assert changed["values"] == {
        "card": {"source": "55", "destination": "theirs"},
        "gone": {"source": None, "destination": "5"},
    }
    assert missing["key"] == {"email": hashed("e66")}
    report = masked.verify(sample=0.01)
    assert report.counts[Kind.MISSING] == 1
