"""Answers, chats and scores of a model in this program: no server, no port."""

from mambaserve import LLM

with LLM("builtin://tiny-recall") as llm:
    [answer] = llm.chat([{"role": "user", "content": "Hello"}], temperature=0)
    print(answer.text)

    # Hundreds of prompts are computed together; what they have in common is computed once.
    facts = "The capital of Norway is Oslo. The capital of Peru is Lima. The capital of Kenya is Nairobi. "
    answers = llm.generate([f"{facts}Question {i}: " for i in range(200)], max_tokens=8, temperature=0)
    resumed = sum(answer.cached_tokens for answer in answers)
    print(f"{len(answers)} answers, {resumed / sum(answer.prompt_tokens for answer in answers):.0%} resumed")

    for score in llm.score(["The cat sat on the mat.", "Mat the on sat cat the."]):
        print(f"{score.total:8.2f}  {''.join(score.tokens)}")
