// Scenarios are small programs of a user's; they run side by side, each on a queue of its own, and what became of each
// is printed as one JSON object on the last line.

const scenarios = new Map();

export function scenario(name, program) {
  scenarios.set(name, program);
}

export async function run() {
  const results = {};
  const attempts = [...scenarios].map(async ([name, program]) => {
    try {
      await withTimeout(program(), 25_000);
      results[name] = "ok";
    } catch (error) {
      results[name] = `${error.stack}\ncode: ${error.code}`;
    }
  });
  await Promise.all(attempts);
  console.log(JSON.stringify(results));
  process.exit(0);
}

async function withTimeout(work, milliseconds) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done within ${milliseconds} ms`)), milliseconds);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}

export function setting(name) {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set`);
  return value;
}
