"""Ray actors of the sandbox: process boundaries around CompileService, DeviceJudge and JudgeCoordinator, and no more.

    RemoteJudge ──judge(task, candidate)──► JudgeActor ──► CompileActor x num_workers      sources -> Artifact
    (any process)                             │ dedupe, retries
                                              └─────────► ProfilerActor x num_devices      Artifact -> Judgement

A dead CompileActor or ProfilerActor is replaced by the JudgeActor, and the work goes to the next one; a dead JudgeActor
is restarted by Ray and asked again. All of it is counted, none of it is scored.
"""
