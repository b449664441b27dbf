// Asks a server by the Vercel AI SDK and its providers, and prints what the SDK understood as JSON.
//
// Run as `node other_clients.mjs FOLDER URL MODEL`; the packages are in FOLDER/node_modules. It imports nothing
// of ours, and nothing about the SDK is changed.

import { createRequire } from 'node:module'
import { join } from 'node:path'

const [folder, url, model] = process.argv.slice(2)
const require = createRequire(join(folder, 'package.json'))
const { embedMany, generateText, Output, streamText, tool } = require('ai')
const { createAnthropic } = require('@ai-sdk/anthropic')
const { createOpenAI } = require('@ai-sdk/openai')
const { createOpenAICompatible } = require('@ai-sdk/openai-compatible')
const { z } = require('zod')

const apiKey = 'none'
const prompt = 'lamp: red'
const asked = { prompt, temperature: 0, maxOutputTokens: 200, maxRetries: 0 }
const colour = z.strictObject({ name: z.enum(['red', 'blue']), shade: z.union([z.literal(1), z.literal(2)]) })
const paint = tool({ description: 'Paint the lamp.', inputSchema: colour })

const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey })
const compatible = createOpenAICompatible({
  name: 'mambaserve', baseURL: `${url}/v1`, apiKey, supportsStructuredOutputs: true,
})
const anthropic = createAnthropic({ baseURL: `${url}/v1`, apiKey })
const chats = {
  chat: openai.chat(model), responses: openai.responses(model), compatible: compatible(model), claude: anthropic(model),
}

const answers = {}
for (const [name, chat] of Object.entries(chats)) {
  answers[`text_${name}`] = (await generateText({ model: chat, ...asked })).text
  let streamed = ''
  for await (const part of streamText({ model: chat, ...asked }).textStream) streamed += part
  answers[`streamed_${name}`] = streamed
  const called = await generateText({ model: chat, ...asked, tools: { paint }, toolChoice: 'required' })
  answers[`called_${name}`] = called.toolCalls[0].input
  const parsed = await generateText({ model: chat, ...asked, output: Output.object({ schema: colour }) })
  answers[`parsed_${name}`] = parsed.output
}
const vectors = await embedMany({ model: compatible.embeddingModel(model), values: ['a', 'b'] })
answers.vectors = vectors.embeddings.length
console.log(JSON.stringify(answers))
