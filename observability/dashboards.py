"""The dashboards that the chart ships. A panel stands for a question that somebody has, and says which."""

from observability.overview import OVERVIEW
from observability.reconciling import OPERATOR
from observability.routing import ROUTING
from observability.state_cache import STATE_CACHE

DASHBOARDS = (OVERVIEW, STATE_CACHE, ROUTING, OPERATOR)
