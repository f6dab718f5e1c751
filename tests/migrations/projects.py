"""The projects, and the environments that they are installed into."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.lint.tree import ROOT
from tests.rigs.database import Database

_CONTRIB: Final = tuple(
    f"django.contrib.{name}"
    for name in ("admin", "auth", "contenttypes", "sessions", "messages", "staticfiles", "sites")
)
_FOLDER: Final = ROOT / "build" / "migrations"


@dataclass(frozen=True, slots=True)
class Project:
    """A Django project that a package publishes, with the apps whose migrations are carried out."""

    name: str
    packages: tuple[str, ...]
    apps: tuple[str, ...] = ()
    """The installed apps besides Django's own, for a project without `module`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    module: str = ""
    """The project's own module of settings, with all apps."""
    defaults: str = ""
    """Its module of some settings."""
    server: int = 18
    """The version of PostgreSQL that it is played on."""
    python: str = sys.executable
    """The command of a Python that it supports."""

    def install(self) -> Path:
        """Return the Python of the project's environment, which is made once."""
        folder = _FOLDER / self.name
        python, mark = folder / "bin" / "python", folder / "packages.json"
        if not mark.exists() or json.loads(mark.read_text()) != list(self.packages):
            subprocess.run([self.python, "-m", "venv", "--clear", str(folder)], check=True)
            options = ["--quiet", "--disable-pip-version-check", "--no-compile"]
            subprocess.run([str(python), "-m", "pip", "install", *options, *self.packages], check=True)
            mark.write_text(json.dumps(self.packages))
        return python

    def command(self, database: Database) -> list[str]:
        """Return the command that carries out the migrations in a database, step by step."""
        server = {"HOST": "127.0.0.1", "PORT": database.server.port, "NAME": database.name, "USER": "postgres"}
        settings = {
            "MODULE": self.module,
            "DEFAULTS": self.defaults,
            "SECRET_KEY": "unused",
            "USE_TZ": True,
            "STATIC_URL": "/static/",
            "SITE_ID": 1,
            **({"INSTALLED_APPS": [*self.apps, *_CONTRIB]} if self.apps else {}),
            "DATABASES": {"default": {"ENGINE": "django.db.backends.postgresql", **server}},
            **self.settings,
        }
        return [str(self.install()), str(Path(__file__).with_name("django_steps.py")), json.dumps(settings)]


_DRIVER: Final = "psycopg[binary]>=3.3"
_OSCAR: Final = (
    "analytics.AnalyticsConfig", "checkout.CheckoutConfig", "address.AddressConfig", "shipping.ShippingConfig",
    "catalogue.CatalogueConfig", "catalogue.reviews.CatalogueReviewsConfig", "communication.CommunicationConfig",
    "partner.PartnerConfig", "basket.BasketConfig", "payment.PaymentConfig", "offer.OfferConfig", "order.OrderConfig",
    "customer.CustomerConfig", "search.SearchConfig", "voucher.VoucherConfig", "wishlists.WishlistsConfig",
    "dashboard.DashboardConfig",
    *(f"dashboard.{name}.{name.capitalize()}DashboardConfig" for name in (
        "reports", "users", "orders", "catalogue", "offers", "partners", "pages", "ranges", "reviews", "vouchers",
        "communications", "shipping",
    )),
)  # fmt: skip
_WAGTAIL: Final = (
    "contrib.forms", "contrib.redirects", "contrib.search_promotions", "embeds", "sites", "users", "snippets",
    "documents", "images", "search", "admin",
)  # fmt: skip

_MISAGO: Final = (
    "users", "admin", "acl", "analytics", "cache", "core", "conf", "icons", "themes", "markup", "legal",
    "notifications", "categories", "threads", "readtracker", "search", "oauth2", "socialauth", "graphql", "menus",
    "plugins", "apiv2",
)  # fmt: skip

PROJECTS: Final = (
    Project(
        "wagtail",
        ("wagtail==8.0.1", _DRIVER),
        (*(f"wagtail.{name}" for name in _WAGTAIL), "wagtail", "modelcluster", "taggit"),
        {"WAGTAIL_SITE_NAME": "unused", "WAGTAILADMIN_BASE_URL": "http://localhost"},
    ),
    Project(
        "django-oscar",
        ("django-oscar==4.2.1", _DRIVER),
        (
            "django.contrib.flatpages",
            "oscar.config.Shop",
            *(f"oscar.apps.{p.rsplit('.', 1)[0]}.apps.{p.rsplit('.', 1)[1]}" for p in _OSCAR),
            "widget_tweaks",
            "haystack",
            "treebeard",
            "django_tables2",
        ),
        {"HAYSTACK_CONNECTIONS": {"default": {"ENGINE": "haystack.backends.simple_backend.SimpleEngine"}}},
        defaults="oscar.defaults",
    ),
    Project(
        "misago",
        # It requires a psycopg of its own.
        ("misago==0.39.6",),
        (
            "misago",
            *(f"misago.{name}" for name in _MISAGO),
            "django.contrib.postgres",
            "django.contrib.humanize",
            "ariadne_django",
            "mptt",
            "rest_framework",
            "social_django",
        ),
        {"AUTH_USER_MODEL": "misago_users.User"},
        defaults="misago.settings",
        # Debian's, because it needs the extension hstore.
        server=15,
    ),
    Project("pretalx", ("pretalx==2026.2.1", _DRIVER), module="pretalx.settings", python="python3.13"),
    Project("pretix", ("pretix==2026.8.0", _DRIVER), module="pretix.settings"),
)
