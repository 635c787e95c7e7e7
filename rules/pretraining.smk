rule pretraining:
    """Train one segment, from a boundary step to the next."""
    input:
        DAG.inputs("pretraining"),
    output:
        DAG.stamp("pretraining"),
    log:
        DAG.log("pretraining"),
    benchmark:
        DAG.benchmark("pretraining")
    conda:
        "../environment.yml"
    threads: DAG.threads("pretraining")
    resources:
        mem_mb=DAG.memory("pretraining"),
    shell:
        "{JOB} --plan {PLAN} --node pretraining --work {wildcards.work} > {log:q} 2>&1"
