package commit

// insertFence writes the row of a batch that runs again because its COMMIT had an unknown outcome: a re-run that only met
// conflicts would commit without waiting for a standby.
const insertFence = `INSERT INTO commit_fence (id, fenced_at) VALUES ($1, $2)`
