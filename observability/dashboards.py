"""The dashboards that the chart ships. Each panel answers one question, which its description states."""

from observability.overview import OVERVIEW
from observability.reconciling import OPERATOR
from observability.routing import ROUTING
from observability.state_cache import STATE_CACHE
from observability.usage import USAGE

DASHBOARDS = (OVERVIEW, STATE_CACHE, ROUTING, USAGE, OPERATOR)
