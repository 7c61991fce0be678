from concurrent.futures import ThreadPoolExecutor


def at_once(play, envs):
    """Play every environment in a thread; return what `play(place, env)` returned, in order."""
    with ThreadPoolExecutor(len(envs)) as pool:
        return list(pool.map(play, range(len(envs)), envs))


def count_on(place, env):
    """Count on three times from the number that is shown; return the last reward."""
    start = int(env.reset(options={"task_index": place % 2})[0][0]["content"].split()[-1])
    return [env.step(str(start + i))[1] for i in range(3)][-1]
