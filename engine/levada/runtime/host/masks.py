"""The masks of the manifest with the keys of its Secret."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from levada.mask_keys import NO_KEY_FILES, KeyFile, MaskKeyFiles
from levada.runtime.host.secret_folder import secret_folder
from levada.schema.masks import Mask, TableMasks
from levada.spec import Manifests
from levada.spec.columns import Mask as MaskSpec
from levada.values import MaskMethod


def mask_key_folder(manifests: Manifests, secrets: Path | None) -> Path | None:
    """Return the folder of the Secret with the key of masks, or None without one.

    Raise NeedsOperator ``secret_missing`` if it does not exist.
    """
    reference = manifests.pipeline.spec.tables.mask_key_secret_ref
    return None if reference is None else secret_folder(secrets, reference.name, reference.key)


def open_mask_keys(manifests: Manifests, secrets: Path | None) -> MaskKeyFiles:
    """Read the key of masks. Raise NeedsOperator ``secret_missing``, ``mask_key_unreadable`` and ``mask_key_weak``."""
    folder, reference = mask_key_folder(manifests, secrets), manifests.pipeline.spec.tables.mask_key_secret_ref
    if folder is None or reference is None:
        return NO_KEY_FILES
    return MaskKeyFiles((KeyFile.open(folder / reference.key),))


def table_masks(masks: Mapping[str, MaskSpec], keys: MaskKeyFiles) -> TableMasks:
    """Return the masks of a table. The manifest has a key if one of them is an HMAC."""
    return TableMasks.of({name: _mask(mask, keys) for name, mask in masks.items()})


def _mask(mask: MaskSpec, keys: MaskKeyFiles) -> Mask:
    return Mask(mask.method, mask.length or 0, keys.files[0].key_id if mask.method is MaskMethod.HMAC else "")
