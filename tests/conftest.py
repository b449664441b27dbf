"""What every test needs: a main thread without a left-over event loop.

pytest-asyncio asks for "the current loop" around each test; without this line Python makes one to answer, and
nobody closes it, which the last check of the session reports as an error.
"""

import asyncio

asyncio.set_event_loop(None)
