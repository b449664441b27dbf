// Threads that share the chunks of one call. The caller takes chunks too, so a worker that wakes up late (or
// whose core does something else) costs nothing: a call is over when its chunks are, not when workers say so.
#pragma once

using ChunkFunction = void (*)(void* context, int chunk);

// Run function(context, 0 .. count-1), each once, in any order and on any thread; returns when all are done.
// Calls from two threads at once are served one with workers, the other by its caller alone.
void run_chunks(int count, ChunkFunction function, void* context);

// So many threads compute from now on, the caller's included.
void set_threads(int count);
int threads();

template <typename Body>
void for_each_chunk(int count, const Body& body) {
  run_chunks(
      count, [](void* context, int chunk) { (*static_cast<const Body*>(context))(chunk); },
      const_cast<Body*>(&body));
}
