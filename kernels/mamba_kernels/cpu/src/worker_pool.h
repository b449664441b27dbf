// Threads that share the chunks of one call. The caller takes chunks too, so a worker that wakes up late (or whose
// core does other work) costs nothing: a call ends when its chunks are done, not when workers report.
#pragma once

using ChunkFunction = void (*)(void* context, int chunk);

// Runs function(context, 0 .. count-1), each once, in any order and on any thread; returns when all are done. Of two
// concurrent calls one uses the workers, and the other is computed by its caller alone.
void run_chunks(int count, ChunkFunction function, void* context);

// Sets the number of threads that compute, including the caller.
void set_threads(int count);
int threads();

template <typename Body>
void for_each_chunk(int count, const Body& body) {
  run_chunks(
      count, [](void* context, int chunk) { (*static_cast<const Body*>(context))(chunk); },
      const_cast<Body*>(&body));
}
